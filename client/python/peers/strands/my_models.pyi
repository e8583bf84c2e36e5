from strands.models.model import Model

model: Model
