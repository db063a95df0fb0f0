# Everything here is one command that also works without `just`; `just --list` explains each.

# Three nodes on this machine
dev *ARGS:
    cargo run --release -- dev {{ARGS}}

# Everything that is quick to test
test *ARGS:
    cargo test --workspace {{ARGS}}

# Format, lints, documents
lint:
    .ci/run fmt clippy docs licences

# What must be green before a change lands
ci *STEPS:
    .ci/run {{STEPS}}

# What takes hours
long *STEPS:
    .ci/long {{STEPS}}

# Seeds of the simulator, as `just sim 0..300`
sim SEEDS="0..300" SCENARIO="all":
    cargo run --release -p atoll-sim -- run --scenario {{SCENARIO}} --seeds {{SEEDS}}

# One drill on real processes, as `just drill failover --quick`
drill NAME *ARGS:
    cargo build --release
    drills/{{NAME}}.py {{ARGS}}

# All figures of the papers, again
figures:
    experiments/run
