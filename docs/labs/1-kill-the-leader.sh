#!/usr/bin/env bash
# Lab 1, kill the leader: docs/labs/1-kill-the-leader.md says what to look for.
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"
need_mesh
sweep kill-the-leader
sweep storm

first=$(orrery leader)
say "$first leads. It tries a pod that fits nowhere: its machine is full."
run orrery apply -f docs/labs/1-kill-the-leader.yaml
orrery wait -l app=kill-the-leader --for running --timeout 60
run orrery apply -f docs/labs/1-kill-the-leader-late.yaml
until [[ $(orrery explain pod/late) == *Insufficient* ]]; do sleep 0.2; done
run orrery explain pod/late

say "A storm of $PODS pods; in the middle of it $first is killed."
orrery storm --pods "$PODS" --timeout 300 & storm=$!
orrery wait -l app=storm --for bound --count $((PODS / 5)) --timeout 120
run docker kill "$(container "$first")"
second=$(run orrery leader --other-than "$first" | tail -n 1)
say "$second leads now, with another epoch. The storm goes on."
wait "$storm"

say "Room for the pod that waited: $second, which had tried it too when it took over, places it."
run orrery delete pod hog --now
orrery wait -l app=kill-the-leader --for running --timeout 60

say "One trace, two leaders."
run orrery traces --tag k8s.pod.name=late --process "$first" --process "$second"
run orrery trace pod/late --no-events

say "Every pod was bound once: ledgers equal pods, nothing pends that would fit."
[ "$(orrery get pods -l app=storm -o name | wc -l)" -eq "$PODS" ] || fail "not all pods of the storm are there"
docker start "$(container "$first")" >/dev/null
all_well
sweep kill-the-leader
sweep storm
say "Lab 1 holds."
