# SPDX-License-Identifier: Apache-2.0
# Both kinds of journal; a second connection reads while the first one writes.
for journal in delete wal persist; do
    {
        echo ".timeout 20000"
        echo "pragma journal_mode=$journal;"
        echo "create table t(k integer primary key, v text);"
        echo "create index i on t(v);"
        for start in 0 300 600 900; do
            echo "begin; with recursive n(k) as (select $start union all select k + 1 from n"
            echo "    where k < $start + 299)"
            echo "insert into t select k, printf('%0*d', 1 + k % 2000, k) from n; commit;"
            echo ".shell sqlite3 $journal.db 'select count(*), sum(length(v)) from t;'"
        done
        echo "begin; delete from t; rollback;"
        echo "delete from t where k % 3 = 0;"
        echo "begin; update t set v = v || 'x' where k % 2;"
        echo ".shell sqlite3 $journal.db 'select count(*), max(v) = min(v) from t;'"
        echo "commit; vacuum; pragma integrity_check; select count(*), sum(length(v)) from t;"
    } | sqlite3 $journal.db
    sqlite3 $journal.db "pragma integrity_check; select sum(k) from t;"
    sqlite3 $journal.db .dump | sha256sum
    sqlite3 $journal.db "vacuum into '$journal.copy'" ".backup $journal.backup"
done
