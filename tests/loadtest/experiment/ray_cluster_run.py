"""The tiny plan on two Ray nodes of one CPU each, on loopback; run as a script, with the directory for its results.

It prints, as JSON, how many nodes computed and what failed.
"""

import json
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from loadtest.experiment.parallel import Backend
from loadtest.experiment.session import prepare, run_session
from loadtest.experiment.store import Store
from tests.loadtest.experiment.experiment_lab import plan


def main(directory: Path) -> None:
    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False)
    try:
        store = Store(directory)
        session = prepare(plan(), store, resume=False)
        nodes: set[str] = set()

        def note_nodes(_: object) -> None:
            nodes.update(actor["Address"]["NodeID"] for actor in ray._private.state.actors().values())

        _, failures = run_session(session, store, backend=Backend.RAY, on_done=note_nodes)
        print(json.dumps({"nodes": len(nodes), "failures": [failure.error for failure in failures]}))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
