-- Removes conversations of a tenant that have ended or exceed its capacity. The arguments after those of lib.lua: the
-- server, the maximum number to remove, and the capacity, -1 for none. Returns the place of the change, see tell, 0 if
-- nothing was removed, and what it removed.
local server, limit, capacity = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local found = {}
addEnded(found, limit)
if capacity >= 0 then
  addOldest(found, math.min(limit, math.max(#found, call('ZCARD', BY_TIME) - capacity)))
end
for _, s in ipairs(found) do remove(s, s.why) end
if call('ZCARD', P .. 'te:' .. T) == 0 then call('ZREM', P .. 'tx', T) end -- It has no records that expire.
listTenant()
if #removed == 0 then return { 0, removed } end
return { tell(server, '', {}), removed }
