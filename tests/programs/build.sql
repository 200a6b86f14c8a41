-- An in-memory database: a table, indexes, updates, joins, checksums.
PRAGMA page_size = 4096;
PRAGMA cache_size = -4000000;
CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT, c REAL);
INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600000)
  SELECT i, (i * 7919) % 1000003, 'row ' || i || ' of the table, some text that looks alike', i / 3.0 FROM n;
CREATE INDEX ta ON t(a);
CREATE INDEX tb ON t(b);
SELECT count(*), sum(a), sum(length(b)), round(sum(c), 3) FROM t;
UPDATE t SET b = b || '!' WHERE a % 5 = 0;
DELETE FROM t WHERE a % 11 = 0;
SELECT count(*), sum(a), sum(length(b)) FROM t;
SELECT sum(x.a), count(*) FROM t x JOIN t y ON y.a = x.id WHERE x.id % 3 = 0;
SELECT b FROM t WHERE b > 'row 4' ORDER BY b LIMIT 3;
CREATE TABLE u AS SELECT a % 1000 k, count(*) n, max(b) m FROM t GROUP BY 1;
SELECT sum(n), min(m), max(m) FROM u;
PRAGMA integrity_check;
