"""One module per prefill/decode protocol: what each leg is sent and what its answer means."""
