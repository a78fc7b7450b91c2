"""SGLang as the inference engine: an HTTP client for its servers, publishing into them, and the servers themselves."""
