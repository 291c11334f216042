"""The mount: kernel requests in, rules called, kernel replies out. With daemon.mount the only FUSE code."""
