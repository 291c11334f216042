"""The cellar: ordered tables in one LMDB environment, and nothing that knows what a note means."""
