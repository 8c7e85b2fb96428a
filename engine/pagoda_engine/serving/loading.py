"""From arguments to a running service: everything slow about a start, in the order in which it can go wrong.

    text ─► weights ─► namespace ─► tiers ─► engine thread ─► proof ─► service

Rules: runs in a thread of its own; imports torch, so it is itself imported there; what was started is ended again when
a later stage fails.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from pagoda_engine.arguments import Arguments
from pagoda_engine.core.engine import Engine
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.errors import CapacityError, ModelError, UnsupportedModelError
from pagoda_engine.model.interface import ModelFacts
from pagoda_engine.model.location import locate
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_engine.serving.auth import Callers
from pagoda_engine.serving.coverage import Coverage
from pagoda_engine.serving.errors import StartError, UnservableError
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.language import ModelLanguage
from pagoda_engine.serving.live import Live
from pagoda_engine.serving.prepare import Limits
from pagoda_engine.serving.proof import Prover, Scope
from pagoda_engine.serving.public import PublicTexts
from pagoda_engine.serving.service import Service
from pagoda_engine.text.errors import TextError
from pagoda_engine.text.model_text import load_text
from pagoda_protocol import metrics as names
from pagoda_protocol.namespace import Namespace
from pagoda_protocol.records import CODECS
from pagoda_protocol.tenants import PROOF_SCOPE, tenant_root, tenant_tag
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.client import EngineIdentity, LockHeldError, TierClient, TierUnavailable

_log = logging.getLogger(__name__)

# Of one pass of the hand-over; the pod's grace period allows for it (DESIGN §7, handOverSeconds).
HAND_OVER_SECONDS = 10.0
_HAND_OVER_BYTES = 1 << 40  # time is the limit that counts

Progress = Callable[[str, float], None]  # (stage, share of it that is done)


@dataclass(frozen=True)
class Loaded:
    """A running engine, and how to end it."""

    service: Service
    engine: Engine
    tiers: TierClient | None
    prover: Prover

    def close(self) -> None:
        """Stop the engine (requests that live end with an error), then let go of the volume."""
        self.prover.stop()
        self.engine.stop()
        if self.tiers is not None:
            self.tiers.close()


def load(arguments: Arguments, keys: Keys, live: Live, metrics: Metrics, progress: Progress) -> Loaded:
    """Load the model, attach the tiers and start the engine.

    Raises:
        UnservableError: the model cannot be served as it was asked for.
        StartError: it does not work, or its files, the device or the volume cannot be used now.
    """
    try:
        return _load(arguments, keys, live, metrics, progress)
    except (UnsupportedModelError, CapacityError) as error:
        raise UnservableError(str(error)) from error
    except (ModelError, TextError, LockHeldError, OSError) as error:  # files may still be on their way here
        raise StartError(str(error)) from error


def _load(arguments: Arguments, keys: Keys, live: Live, metrics: Metrics, progress: Progress) -> Loaded:
    location = locate(package=arguments.model_package, path=arguments.model_path)
    language = ModelLanguage(load_text(location))
    runner = TorchModelRunner(
        open_checkpoint(location),
        kv_memory_bytes=arguments.kv_memory_bytes,
        block_tokens=arguments.block_tokens,
        kv_dtype=arguments.kv_dtype,
        codec=arguments.codec,
        exact=arguments.exact,
        threads=arguments.threads,
        device=arguments.device,
        max_model_tokens=arguments.max_model_tokens,
        progress=progress,
    )
    namespace = namespace_of(runner.facts)
    settings = EngineSettings(
        max_model_tokens=arguments.max_model_tokens,
        max_batch_tokens=arguments.max_batch_tokens,
        max_sequences=arguments.max_sequences,
    )
    with contextlib.ExitStack() as undo:
        tiers: TierClient | None = None
        if arguments.volume is not None:
            identity = EngineIdentity(
                namespace=namespace,
                payload_bytes=runner.facts.payload_bytes,
                block_tokens=arguments.block_tokens,
                model_names=(arguments.model_name,),
                template_digest=language.template_digest,
                codec=CODECS[runner.facts.codec],
            )
            tiers = TierClient(arguments.volume, identity)
            undo.callback(tiers.close)
        # The core states what it needs of a client in types of its own; the sidecar's have the same fields.
        engine = Engine(runner, settings, metrics, tiers, idle_seconds=lambda: live.settings().idle_seconds)
        engine.start()
        undo.callback(engine.stop)
        scope = Scope(
            tenant_root(keys.pool_secret, namespace, PROOF_SCOPE),
            tenant_tag(keys.pool_secret, PROOF_SCOPE),
            arguments.block_tokens,
            runner.facts.payload_bytes,
        )
        proofs = metrics.counter(names.TIER_PROOFS, "Proofs that a tier works, by result.", ("tier", "result"))
        prover = Prover(engine, tiers, scope, proofs)
        progress("proof", 0.0)
        prover.prove()
        progress("proof", 1.0)
        prover.watch()
        undo.pop_all()
    _log.info(
        "loaded namespace=%s kv_dtype=%s codec=%s num_blocks=%d max_request_tokens=%d",
        namespace.hex()[:16],
        runner.facts.kv_dtype,
        runner.facts.codec,
        runner.facts.num_pages,
        engine.max_request_tokens,
    )
    service = Service(
        model=arguments.model_name,
        created=int(time.time()),
        engine=engine,
        language=language,
        limits=Limits(engine.max_request_tokens, runner.facts.vocab_size),
        callers=Callers(keys.pool_secret, namespace, keys.tenants, arguments.block_tokens),
        public=PublicTexts(language, lambda: live.settings().shared_prefixes),
        coverage=Coverage(language, keys.digest_key, language.template_digest, arguments.block_tokens),
        hand_over=lambda: hand_over(tiers),
        proof=prover.describe,
    )
    return Loaded(service, engine, tiers, prover)


def namespace_of(facts: ModelFacts) -> bytes:
    """Return the 32 bytes that two engines must share to share blocks."""
    return Namespace(
        config_digest=facts.config_digest,
        weights_digest=facts.weights_digest,
        kv_dtype=facts.kv_dtype,
        block_tokens=facts.block_tokens,
        # Records of another revision are as foreign as those of another codec.
        codec=f"{facts.codec}/{facts.codec_revision}",
    ).digest()


def hand_over(tiers: TierClient | None) -> int:
    """Have the sidecar push what the pool lacks; return how many blocks it did, 0 where there is nobody to do it."""
    if tiers is None:
        return 0
    try:
        return tiers.hand_over(_HAND_OVER_BYTES, HAND_OVER_SECONDS)
    except TierUnavailable as error:
        _log.info("nothing handed over: %s", error)
        return 0
