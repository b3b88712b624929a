"""A short soak; soak_server.py runs a long one."""

from server import Server
from soak_server import soak


def test_soak(binary, model):
    # The cache may take what it was given; beyond that nothing may grow.
    with Server(binary, "-m", model, "--cache-memory", "16M", ready=120, stop=120) as server:
        result = soak(server, 200, 16, 2)
        assert not result["failures"] and result["left"] == 0
        assert result["outcome"]["good"] >= 80 and result["outcome"]["bad"] >= 20 and result["outcome"]["abandoned"] >= 20
        assert result["memory"][-1] - result["memory"][4] < 32 << 20
