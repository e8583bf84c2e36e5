from my_models import model  # any model of Strands
from strands import Agent
from strands.session import RepositorySessionManager

from parley.adapters.strands import ParleySessionRepository

repository = ParleySessionRepository("127.0.0.1:50051")  # for all sessions of the program
session = RepositorySessionManager("emil@example.com", repository)
agent = Agent(model, session_manager=session)
print(agent("Which libraries keep state?"))
