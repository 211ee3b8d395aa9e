"""The comparison of learned path policies with tuned rules, in the simulator."""
