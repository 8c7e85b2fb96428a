"""What a pool wants in the cluster, as manifests. Pure: a pool and what was observed in, mappings out."""
