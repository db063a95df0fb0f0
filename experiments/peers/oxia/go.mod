module atoll/experiments/peers/oxia

go 1.26

// Oxia's client, from the source that the workspace of ../oxia.py names.
require github.com/oxia-db/oxia/oxia v0.0.0
