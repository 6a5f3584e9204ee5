# What the lab scripts share; sourced by them, runs nothing by itself.
#
# They work on the compose project (COMPOSE_PROJECT_NAME, else `orrery`), from the host: each command that a person would
# type is printed with a $ and then run. `orrery` is the one of .venv or of PATH, else the one in the image.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PROJECT=${COMPOSE_PROJECT_NAME:-orrery}
PODS=${LAB_PODS:-2000}
export ORRERY_CONTEXT=compose COMPOSE_PROJECT_NAME=$PROJECT
[ -x .venv/bin/orrery ] && PATH=$PWD/.venv/bin:$PATH
if ! command -v orrery >/dev/null; then
  # The manifests of the labs come along; what compose says of the container itself is of no interest.
  orrery() { docker compose --progress quiet run --rm --no-deps -T --volume "$PWD/docs:/tmp/docs:ro" lab "$@"; }
fi

say() { printf '\n== %s\n' "$*"; }
run() { echo "\$ $*"; "$@"; }
container() { echo "$PROJECT-$1-1"; }
fail() { echo "lab: $*" >&2; exit 1; }

need_mesh() {
  command -v docker >/dev/null || fail "there is no docker command; Docker with Compose 2.20 or newer runs the labs"
  orrery status >/dev/null 2>&1 || fail "the compose project '$PROJECT' is not up and healthy; start it with: make lab"
}

# The pods of a lab, from this run or one that broke off.
sweep() { orrery delete pods -l "app=$1" --now >/dev/null 2>&1 || true; }

# Waits until every process of the mesh says that it is well.
until_well() {
  for _ in $(seq 120); do
    orrery status >/dev/null 2>&1 && return
    sleep 0.5
  done
  orrery status || fail "the mesh does not get well again"
}

# Everything is as it should be: all containers healthy, and etcd's own data without a contradiction.
all_well() {
  until_well
  run orrery check
}
