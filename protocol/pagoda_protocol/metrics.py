"""Metric names, once. vLLM's names are kept verbatim so that existing dashboards and autoscalers work unchanged."""

NUM_REQUESTS_RUNNING = "vllm:num_requests_running"
NUM_REQUESTS_WAITING = "vllm:num_requests_waiting"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG_INFO = "vllm:cache_config"  # the client library appends _info

# Engine
PROMPT_TOKENS = "pagoda_prompt_tokens"  # _total{source}
REPLAYED_TOKENS = "pagoda_replayed_tokens"  # _total{cause,source}
GENERATION_TOKENS = "pagoda_generation_tokens"  # _total
REQUESTS = "pagoda_requests"  # _total{outcome}
HTTP_ANSWERS = "pagoda_http_answers"  # _total{path,code}
TIME_TO_FIRST_TOKEN = "pagoda_time_to_first_token_seconds"
INTER_TOKEN = "pagoda_inter_token_seconds"
STEP = "pagoda_step_seconds"
PREEMPTIONS = "pagoda_preemptions"  # _total
BLOCKS = "pagoda_blocks"  # {state=free|cached|referenced}
TIER_LOADS_SKIPPED = "pagoda_tier_loads_skipped"  # _total{reason}
TIER_STORES = "pagoda_tier_stores"  # _total{outcome}
TIER_ATTACHED = "pagoda_tier_attached"
TIER_PROOFS = "pagoda_tier_proofs"  # _total{tier,result=ok|failed}
PARKED_SESSIONS = "pagoda_parked_sessions"  # _total
PARKED_BLOCKS = "pagoda_parked_blocks"  # _total
SESSIONS_NOT_PARKED = "pagoda_sessions_not_parked"  # _total{reason}
HIT_RATIO = "pagoda_hit_ratio"
HIT_CEILING_RATIO = "pagoda_hit_ceiling_ratio"
UNAVOIDABLE_PROMPT_TOKENS = "pagoda_unavoidable_prompt_tokens"  # _total, an estimate

# Sidecar
INTEGRITY_FAILURES = "pagoda_integrity_failures"  # _total{tier,reason}
TIER_BLOCKS = "pagoda_tier_blocks"  # {tier,state}
TIER_BYTES = "pagoda_tier_bytes"  # {tier}
TIER_LOOKUPS = "pagoda_tier_lookups"  # _total{tier,result}
TIER_EVICTIONS = "pagoda_tier_evictions"  # _total{tier}
TIER_DEMOTIONS = "pagoda_tier_demotions"  # _total{outcome=stored|refused|queue_full|lost}
DISK_MOVES = "pagoda_disk_moves"  # _total
TIER_SHARE_EVICTIONS = "pagoda_tier_share_evictions"  # _total{tier}, within the evictions
ARENA_ALLOCATED_RATIO = "pagoda_arena_allocated_ratio"
LEASES = "pagoda_leases"
QUARANTINED_SLOTS = "pagoda_quarantined_slots"
POOL_OPERATIONS = "pagoda_pool_operations"  # _total{node,operation,outcome}
POOL_PROBES_SAVED = "pagoda_pool_probes_saved"  # _total{reason}
POOL_PUSHES_DROPPED = "pagoda_pool_pushes_dropped"  # _total{reason}
POOL_NODE_UP = "pagoda_pool_node_up"  # {node}
DIGEST_ROWS = "pagoda_digest_rows"
ATTACHES = "pagoda_sidecar_attaches"  # _total{result}
CALLS_REFUSED = "pagoda_sidecar_calls_refused"  # _total{call,reason}
WORKER_RESTARTS = "pagoda_worker_restarts"  # _total

# Router
ROUTER_DECISIONS = "pagoda_router_decisions"  # _total{reason}
ROUTER_REQUESTS = "pagoda_router_requests"  # _total{code}
ROUTER_RETRIES = "pagoda_router_retries"  # _total{reason}
ROUTER_STREAMS_BROKEN = "pagoda_router_streams_broken"  # _total
ROUTER_OUTSTANDING_SECONDS = "pagoda_router_outstanding_seconds"  # {pod}
ROUTER_HINT_ROWS = "pagoda_router_hint_rows"  # {pod}
ROUTER_HINT_STREAM_UP = "pagoda_router_hint_stream_up"  # {pod}
ROUTER_DISCOVERY_FAILURES = "pagoda_router_discovery_failures"  # _total{reason}
ROUTER_DISCOVERY_DEGRADED = "pagoda_router_discovery_degraded"  # {reason}

# Operator
OPERATOR_LEADER = "pagoda_operator_leader"
OPERATOR_RECONCILES = "pagoda_operator_reconciles"  # _total{result}
OPERATOR_RECONCILE_SECONDS = "pagoda_operator_reconcile_seconds"
OPERATOR_QUEUE_DEPTH = "pagoda_operator_queue_depth"
OPERATOR_QUEUE_ADDS = "pagoda_operator_queue_adds"  # _total
OPERATOR_QUEUE_RETRIES = "pagoda_operator_queue_retries"  # _total
OPERATOR_API_CALLS = "pagoda_operator_api_calls"  # _total{verb,kind,code}

# Operator, of the pods it asks and annotates
OPERATOR_SCRAPES = "pagoda_operator_scrapes"  # _total{container,outcome}
OPERATOR_ANNOTATION_WRITES = "pagoda_operator_annotation_writes"  # _total{outcome}
OPERATOR_ANNOTATIONS_WAITING = "pagoda_operator_annotations_waiting"

# Operator, of the pools it serves
POOL_CONDITION = "pagoda_pool_condition"  # {namespace,pool,type}: 1 true, 0 false, -1 unknown

SOURCES = ("compute", "device", "ram", "disk", "pool")
