"""Results as people read them and as files that say where they came from."""
