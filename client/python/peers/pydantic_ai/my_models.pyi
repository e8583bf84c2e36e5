from pydantic_ai.models import Model

model: Model
