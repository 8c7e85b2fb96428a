"""An `InferencePool` as the parts read it: `spec` parses a manifest, `arguments` turns it into command lines."""
