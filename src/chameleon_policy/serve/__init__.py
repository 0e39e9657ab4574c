"""A policy on the network: many robots, one memory each, computed together.

Read in this order: settings, authentication -> requests -> memories -> sessions -> engine ->
connection -> health -> server. What travels is described in the client's package,
chameleon_client.wire, which knows nothing of torch.
"""

from chameleon_policy.serve.authentication import find_token
from chameleon_policy.serve.server import running_server, serve
from chameleon_policy.serve.settings import Settings

__all__ = ["Settings", "find_token", "running_server", "serve"]
