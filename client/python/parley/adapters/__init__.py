"""Adapters: agent frameworks that keep their sessions, state and checkpoints in Parley.

Each module is for one framework and needs its package, which the extra of the same name installs:
``pip install 'parley-client[langgraph]'`` for :mod:`parley.adapters.langgraph`. The package parley
itself imports none of them.

All adapters share these rules:

- The id of a conversation is the id of the framework. If the framework has several ids, such as
  those of an application, a user and a session, they are joined by "/". See
  :func:`parley.adapters.conversation_id`.
- What the framework must get back exactly is stored as its bytes: in the ``native`` payload of a
  message, or as a record.
- Conversations that an adapter creates keep all messages, do not expire and are not evicted,
  unless the caller of the adapter passes another retention.
- The server is an address, or a client of this package that the caller closes.
"""

from parley.adapters._common import Server, conversation_id, record_key

__all__ = ["Server", "conversation_id", "record_key"]
