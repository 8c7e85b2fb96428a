"""A real Kubernetes for the stories: built from Go modules, run on this machine, gone afterwards. See README.md."""
