-- Count pending entries whose bodies are gone; writes nothing.
-- KEYS     1 stream
-- ARGV     1 group   2 first id of the page   3 page_max
-- RETURNS  {how many are gone, how many were looked at, where the next page begins ("" at the end)}
-- SETTLES  bodies stay on the server: only numbers travel.
local page = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', ARGV[3])
local ghosts = 0
for _, held in ipairs(page) do
  if #redis.call('XRANGE', KEYS[1], held[1], held[1], 'COUNT', 1) == 0 then
    ghosts = ghosts + 1
  end
end
if #page < tonumber(ARGV[3]) then return {ghosts, #page, ''} end
return {ghosts, #page, '(' .. page[#page][1]}
