"""An emulated vLLM worker: the engine model in real time behind vLLM's HTTP interface."""
