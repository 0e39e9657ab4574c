"""A policy server: many robots, one memory each, computed together.

Read in this order: settings, authentication -> requests -> memories, batches -> sessions ->
sampling, answers -> engine -> audit, book, connection -> door, health -> server. The package of the
client describes the messages, in chameleon_client.wire, without torch.
"""

from chameleon_policy.serve.authentication import find_token
from chameleon_policy.serve.server import running_server, serve
from chameleon_policy.serve.settings import ServerSettings

__all__ = ["ServerSettings", "find_token", "running_server", "serve"]
