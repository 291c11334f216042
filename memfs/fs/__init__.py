"""The mount: kernel requests in, rules called, replies out."""
