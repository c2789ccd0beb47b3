-- Enters a name into the index of blocked names, where that is on another shard than its key.
-- ARGV: now, name, until.
index(KEYS[1], ARGV[2], tonumber(ARGV[3]))
return { now }
