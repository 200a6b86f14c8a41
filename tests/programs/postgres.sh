# A database from its making to its end: initdb, a server with four clients, and what stands in it afterwards.
#   postgres.sh BINARIES DIRECTORY SCALE TRANSACTIONS     the directory must be one's own to write to
set -eu
bin=$1 base=$2 scale=$3 transactions=$4
data=$base/data
rm -rf "$data"
"$bin/initdb" -D "$data" -U postgres -A trust --no-locale --no-sync >"$base/initdb.log"
"$bin/pg_ctl" -D "$data" -w -t 600 -l "$base/server.log" \
    -o "-k $base -c listen_addresses= -c shared_buffers=16MB -c fsync=off" start >"$base/start.log"
trap '"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null' EXIT
export PGHOST=$base PGUSER=postgres PGDATABASE=postgres
"$bin/pgbench" -i -q -s "$scale" 2>"$base/fill.log"
"$bin/pgbench" -n -c 4 -j 2 -t "$transactions" --random-seed=1 >"$base/bench.log" 2>&1
# What the transactions have added up to does not depend on their order. Sorting and hashing in memory
# takes more than all the servers so far; two of them at once.
"$bin/psql" -qAt -v ON_ERROR_STOP=1 <<'END' >"$base/big" &
set work_mem = '200MB';
select md5(string_agg(x, ',' order by x desc)) from (select md5(n::text) x from generate_series(1, 200000) n) y;
select count(*), max(c) from (select md5((n % 100000)::text) h, count(*) c from generate_series(1, 300000) n group by 1) y;
END
"$bin/psql" -qAt -v ON_ERROR_STOP=1 <<'END'
set work_mem = '200MB';
select 'accounts', count(*), md5(string_agg(aid || ':' || abalance, ',' order by aid)) from pgbench_accounts;
select 'branches', count(*), md5(string_agg(bid || ':' || bbalance, ',' order by bid)) from pgbench_branches;
select 'tellers', count(*), md5(string_agg(tid || ':' || tbalance, ',' order by tid)) from pgbench_tellers;
select 'history', count(*), sum(delta), md5(string_agg(tid || ':' || aid || ':' || delta, ',' order by tid, aid, delta)) from pgbench_history;
END
wait $!
cat "$base/big"
trap - EXIT
"$bin/pg_ctl" -D "$data" -m fast -w -t 600 stop >/dev/null
