# SPDX-License-Identifier: Apache-2.0
# A cluster, its start, pgbench, a dump, its end. As root: by the user postgres.
# It takes no messages in other languages, listens to a socket in $SHORT only.
run=()
if [ "$(id -u)" = 0 ]; then
    run=(setpriv --reuid=postgres --regid=postgres --init-groups --no-new-privs)
    chown postgres .
fi
export LC_ALL=C PGDATA=$PWD/data PGHOST=$SHORT PGUSER=postgres
"${run[@]}" "$PG/initdb" --no-locale -U postgres -A trust >/dev/null
"${run[@]}" "$PG/pg_ctl" -w -s -l "$PWD/log" -o "-c listen_addresses= -k $SHORT" start
"${run[@]}" "$PG/createdb" bench
"${run[@]}" "$PG/pgbench" -q -i -s 2 bench 2>/dev/null
"${run[@]}" "$PG/pgbench" --random-seed=7 -t 300 bench | grep -e processed -e failed
"${run[@]}" "$PG/psql" -At -c 'select count(*), sum(abalance) from pgbench_accounts' bench
"${run[@]}" "$PG/psql" -At -c 'create index on pgbench_accounts(abalance)' -c 'vacuum full' bench
"${run[@]}" "$PG/pg_ctl" -w -s -m immediate stop
"${run[@]}" "$PG/pg_ctl" -w -s -l "$PWD/log" -o "-c listen_addresses= -k $SHORT" start
"${run[@]}" "$PG/psql" -At -c 'select count(*), sum(abalance) from pgbench_accounts' bench
"${run[@]}" "$PG/pg_dump" -T pgbench_history bench | grep -v restrict | sort | sha256sum
"${run[@]}" "$PG/pg_ctl" -w -s -m fast stop
"${run[@]}" "$PG/pg_checksums" --check 2>/dev/null | grep -i bad || true
