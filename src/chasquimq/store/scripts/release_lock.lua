-- Stop being the leader.
-- KEYS     1 lock
-- ARGV     1 holder
-- RETURNS  1 released, 0 it was not ours
-- SETTLES  a late release: it never frees another holder's lock.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
