"""The gateway's data plane beside vllm-router and nginx: CPU time, latency, memory, and what leaving clients leave."""
