# A redis server that holds small documents, and clients that get and set them at random, eight at once.
#   redis_clients.sh KEYS REQUESTS
# What every key has before they set is on stdout, as a digest; how fast they were goes to stderr.
set -e
keys=$1 requests=$2
socket=$(mktemp -u "$TMPDIR/redis-XXXXXX")
# The same file as redis-server, in the package that starts no service.
(exec -a redis-server redis-check-rdb --port 0 --unixsocket "$socket" --save '' --enable-debug-command yes >/dev/null) &
server=$!
call() { redis-cli -s "$socket" "$@"; }
until call ping >/dev/null 2>&1; do kill -0 $server; sleep 0.01; done
call eval '
    local x = 1
    for i = 0, ARGV[1] - 1 do
        x = (x * 69069 + 1) % 4294967296
        redis.call("SET", string.format("key:%012d", i), string.format(
            "{\"id\":%d,\"name\":\"user%d\",\"mail\":\"user%d@example.org\",\"score\":%d.%02d,\"tags\":[\"%x\",\"t%d\"],\"text\":\"%s\"}",
            i, x % 100000, x % 100000, x % 977, x % 97, x, x % 50, string.rep("some words, ", x % 16)))
    end' 0 "$keys" >/dev/null
call dbsize
call debug digest
clients() { redis-benchmark -s "$socket" -c 4 -r "$keys" -n "$requests" -q "$@" >&2; }
clients get key:__rand_int__ &
gets=$!
clients set key:__rand_int__ '{"id":0,"name":"nobody","mail":"nobody@example.org","score":0.00,"tags":[],"text":"set since"}'
wait $gets
call dbsize
call shutdown nosave
wait
