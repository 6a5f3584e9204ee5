#!/usr/bin/env bash
# Lab 3, cut the leader off: docs/labs/3-cut-the-leader-off.md says what to look for.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"
need_mesh
sweep storm

network=${PROJECT}_default
first=$(orrery leader)
say "A storm of $PODS pods; in the middle of it the network cable of $first is pulled."
orrery storm --pods "$PODS" --timeout 300 & storm=$!
orrery wait -l app=storm --for bound --count $((PODS / 5)) --timeout 120
run docker network disconnect "$network" "$(container "$first")"
second=$(run orrery leader --other-than "$first" | tail -n 1)
say "$second leads now. $first runs, sees nobody, and has stopped deciding."
wait "$storm"
for _ in $(seq 100); do
  docker logs "$(container "$first")" 2>&1 | grep -q '"stopped_leading"' && break
  sleep 0.2
done
run docker logs --tail 200 "$(container "$first")" 2>&1 | grep -E '"(renew_deadline_passed|stopped_leading)"' | tail -n 2 \
  || fail "$first never stopped leading"

say "The cable goes back in: $first is a standby like any other."
run docker network connect --alias "$first" "$network" "$(container "$first")"
until_well
[ "$(orrery leader)" = "$second" ] || fail "$first came back and took over"
run orrery status

say "Every pod was bound once."
all_well
sweep storm
say "Lab 3 holds."
