"""The API of Parley, generated from proto/parley/v1 by generate.sh."""
