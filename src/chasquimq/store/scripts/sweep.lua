-- Forget pending entries whose bodies are gone: somebody trimmed or deleted them.
-- KEYS     1 stream
-- ARGV     1 group   2 first id of the page   3 page_max
-- RETURNS  {how many were forgotten, where the next page begins ("" at the end)}
-- SETTLES  ghosts: no read ever delivers them and no ack ever comes for them.
local page = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', ARGV[3])
local ghosts = 0
for _, held in ipairs(page) do
  if #redis.call('XRANGE', KEYS[1], held[1], held[1], 'COUNT', 1) == 0 then
    redis.call('XACK', KEYS[1], ARGV[1], held[1])
    ghosts = ghosts + 1
  end
end
if #page < tonumber(ARGV[3]) then return {ghosts, ''} end
return {ghosts, '(' .. page[#page][1]}
