"""The HTTP door: decodes a request, asks the service, encodes the answer; it holds no rules."""
