"""Sessions of Google's Agent Development Kit (ADK), kept in Parley.

    pip install 'parley-client[adk]'

Start at :class:`ParleySessionService`.
"""

from parley.adapters.adk._service import ParleySessionService

__all__ = ["ParleySessionService"]
