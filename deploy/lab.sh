#!/usr/bin/env bash
# `make lab` and `make lab-down`: the compose project from nothing to a loaded mesh, with a sentence for what goes wrong.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

COMPOSE_MIN=2.20.0
WAIT_SECONDS_MAX=${LAB_WAIT_SECONDS:-180}
project=${COMPOSE_PROJECT_NAME:-orrery}

fail() { echo "lab: $*" >&2; exit 1; }
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# A variable as compose sees it: the environment, else .env, else the default.
variable() {
  local value=${!1-}
  [ -z "$value" ] && [ -f .env ] && value=$(sed -n "s/^$1=//p" .env | tail -n 1)
  echo "${value:-$2}"
}

need_docker() {
  command -v docker >/dev/null || fail "there is no docker command; install Docker Engine with the Compose plugin $COMPOSE_MIN or newer (without Docker: make demo)"
  local said version
  said=$(docker info 2>&1 >/dev/null) || fail "Docker does not answer: $(head -n 1 <<<"$said"); is the daemon started, and may this user reach it?"
  version=$(docker compose version --short 2>/dev/null) || fail "Docker has no Compose plugin; install docker-compose-plugin $COMPOSE_MIN or newer"
  version=${version#v}
  older "${version%%[-+]*}" "$COMPOSE_MIN" && fail "Docker Compose $version is too old; $COMPOSE_MIN or newer is needed"
  return 0
}

# Which of the published ports somebody else has, before compose stops half-way with Docker's own words.
need_ports() {
  local item name port taken="" instead=""
  for item in ORRERY_APISERVER_0_PORT:6443 ORRERY_APISERVER_1_PORT:6444 ORRERY_SCHEDULER_0_PORT:10259 \
    ORRERY_SCHEDULER_1_PORT:10260 ORRERY_KUBELET_PORT:10250 ORRERY_ETCD_PORT:2379 ORRERY_OTLP_PORT:4317 \
    ORRERY_TRACES_PORT:16687 ORRERY_JAEGER_PORT:16686; do
    name=${item%%:*}
    port=$(variable "$name" "${item##*:}")
    [ "$name" = ORRERY_JAEGER_PORT ] && [ -z "$jaeger" ] && continue
    [ -n "$(docker ps --quiet --filter "label=com.docker.compose.project=$project" --filter "publish=$port")" ] && continue
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      taken="$taken $port ($name)"
      instead="$name=$(((port + 10000) % 55000))"
    fi
  done
  [ -z "$taken" ] || fail "these ports of 127.0.0.1 are taken by other programs:$taken; choose others in .env, such as $instead (cp .env.example .env)"
}

# Jaeger is left out, with a word, where its image is neither here nor to be had.
choose_jaeger() {
  jaeger=""
  case ",$(variable COMPOSE_PROFILES jaeger)," in *,jaeger,*) jaeger=yes ;; esac
  [ -n "$jaeger" ] || return 0
  local image
  image=$(variable ORRERY_JAEGER_IMAGE jaegertracing/jaeger:2.13.0)
  docker image inspect "$image" >/dev/null 2>&1 && return 0
  if ! docker pull --quiet "$image" >/dev/null 2>&1; then
    echo "lab: the image $image cannot be had, so there is no Jaeger; the trace store answers its query API"
    jaeger=""
  fi
}

up() {
  need_docker
  choose_jaeger
  need_ports
  export COMPOSE_PROFILES=${jaeger:+jaeger}
  echo "building the image, and starting the containers"
  docker compose build --quiet || fail "the image could not be built; see above"
  docker compose up --detach --wait --wait-timeout "$WAIT_SECONDS_MAX" 2>&1 | grep -E 'Healthy|Error|unhealthy|exited' | sed 's/^/  /'
  [ "${PIPESTATUS[0]}" -eq 0 ] || why_not
  echo "loading the example"
  docker compose run --rm --no-deps -T --volume "$PWD/examples:/examples:ro" lab apply -f /examples 2>/dev/null | sed 's/^/  /'
  [ "${PIPESTATUS[0]}" -eq 0 ] || fail "the example was not loaded whole; see above"
  next
}

why_not() {
  local line name state
  docker compose ps --all --format '{{.Service}} {{.State}} {{.Health}}' | while read -r line; do
    read -r name state health <<<"$line"
    [ "$health" = healthy ] || [ "$name" = jaeger ] && continue
    echo "lab: $name is $state${health:+, $health}; it says:" >&2
    docker compose logs --no-log-prefix --tail 3 "$name" >&2
  done
  fail "not everything became healthy within $WAIT_SECONDS_MAX s; what did goes on running. Data of another version is removed with: docker compose down --volumes"
}

next() {
  cat <<WORDS

The mesh runs. Open:
WORDS
  [ -n "$jaeger" ] && echo "  http://127.0.0.1:$(variable ORRERY_JAEGER_PORT 16686)   Jaeger: service orrery-scheduler, operation scheduler.attempt"
  cat <<WORDS
  http://127.0.0.1:$(variable ORRERY_TRACES_PORT 16687)/api/services   the trace store, in Jaeger's query API
Ask:
  docker compose run --rm lab status              or, with \`make setup\`:  .venv/bin/orrery --context compose status
  docker compose run --rm lab get pods -o wide
  docker compose run --rm lab trace pod/trainer-8x
Break it:
  docs/labs/1-kill-the-leader.sh    docs/labs/1-kill-the-leader.md says what to look for
End:
  make lab-down
WORDS
}

down() {
  need_docker
  COMPOSE_PROFILES=jaeger,lab docker compose down --volumes --remove-orphans 2>&1 | tail -n 1
}

case ${1:-} in
  up) up ;;
  down) down ;;
  *) echo "usage: deploy/lab.sh up|down" >&2; exit 2 ;;
esac
