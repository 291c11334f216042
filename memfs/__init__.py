"""memfs: an agent's memory as a mounted, versioned folder."""
