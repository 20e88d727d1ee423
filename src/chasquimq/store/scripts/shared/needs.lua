-- Stands above every script that calls `needs`: refuses the script unless its user may run the
-- command. Lua cannot take back the first half of a script, so rights are checked before the first
-- write. A check writes nothing, so a server without memory refuses what it would refuse without
-- it. Servers before 7.0 cannot be asked.
local is_allowed = redis.acl_check_cmd
local function needs(command, key, ...)
  if not is_allowed or is_allowed(command, key, ...) then return end
  -- The server refuses this, and says to whom and why.
  redis.call(command, key, ...)
end
