#!/bin/sh
# Runs the tests of the OpenAI Agents SDK with OpenAIConversationsSession, whose client has the URL of a parleyd.
set -eu

SUITE=$(cd "$(dirname "$0")" && pwd)
export SUITE
exec sh "$SUITE/../openai_agents/suite.sh" --timeout=60
