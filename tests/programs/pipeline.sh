# A shell's work: a pipeline with sort, python and gzip, beside another one, and what both give.
#   pipeline.sh LINES
set -e -o pipefail

lines() {
    python3 -c '
import sys
x = int(sys.argv[2])
for _ in range(int(sys.argv[1])):
    x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
    print(f"{x >> 40:08d} user{x >> 50:05d} wants /page/{x >> 44 & 255} of {x >> 33 & 4095}")
' "$@"
}

# Who wanted how often, with all the pages of each: a dictionary of lists.
report() {
    python3 -c '
import collections, sys
wants = collections.defaultdict(list)
for line in sys.stdin:
    number, user, _, page, _, of = line.split()
    wants[user].append((page, int(of), number))
for user in sorted(wants):
    print(user, len(wants[user]), sum(of for _, of, _ in wants[user]), *sorted(page for page, _, _ in wants[user]))
'
}

lines "$1" 1 | sort -S 48M --parallel=2 -T "$TMPDIR" | tee >(sha256sum >pipeline.sorted) | report | gzip -n -9 >pipeline.gz &
other=$(lines "$1" 2 | sort -u -S 24M -T "$TMPDIR" -k 4,4 -k 1,1 | cut -d ' ' -f 1-3 | gzip -n | sha256sum)
wait $!
while [[ ! -s pipeline.sorted ]]; do sleep 0.01; done
echo "$other" "$(cat pipeline.sorted)"
gzip -dc pipeline.gz | sha256sum
(exit 3) || echo "status $?"
for signal in TERM KILL; do
    sleep 100 &
    kill -$signal $!
    wait $! || echo "ended with $?"
done
