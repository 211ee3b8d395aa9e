"""The engine model: what a GPU running vLLM would do and how long it would take, without a clock."""
