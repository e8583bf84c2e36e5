-- Undoes one hold of ids by a server, or all of them. The arguments after those of lib.lua: the server that releases, the
-- one that holds, the number of the release, see isMade, '' to make it in any case, the nanoseconds after which the
-- conversations are deleted, or '' for those of the hold, which undoes all holds of the server, and the ids. Returns the
-- place of the change, see tell, 0 if nothing was removed, -1 if it was made before, and what it removed.
local server, holder, number, after = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if number ~= '' then
  if isMade(server, number) then return { -1, removed } end
  setMade(server, number)
end
local holds = P .. 'ho:' .. holder

-- plus adds nanoseconds to a time. Both have up to 19 digits, more than a double holds.
local function plus(time, ns)
  local high, low = tonumber(string.sub(time, 1, 10)), tonumber(string.sub(time, 11))
  local sum = low + tonumber(string.sub(ns, -9))
  high = high + (tonumber(string.sub(ns, 1, -10)) or 0) + math.floor(sum / 1e9)
  return string.format('%010.0f%09.0f', high, sum % 1e9)
end

for i = 8, #ARGV do
  local id = ARGV[i]
  local own, state = call('HGET', holds, T .. id), call('HGET', EPHEMERAL, id)
  if own and isHeld(state) then
    local mine, ofHold = string.match(own, '^(%d+) (%d+)$')
    local n = after == '' and tonumber(mine) or 1
    if tonumber(mine) > n then
      call('HSET', holds, T .. id, mine - n .. ' ' .. ofHold)
    else
      call('HDEL', holds, T .. id)
    end
    local left = tonumber(string.sub(state, 2)) - n
    local s = conversation(id)
    if left > 0 then
      call('HSET', EPHEMERAL, id, 'h' .. left)
      if s then call('HSET', P .. 'c:' .. T .. id, 'e', 'h' .. left) end
    elseif not s then -- Without a conversation there is nothing to delete later.
      call('HDEL', EPHEMERAL, id)
    else
      s.ephemeral = plus(now, after == '' and ofHold or after)
      call('HSET', EPHEMERAL, id, s.ephemeral)
      if s.ephemeral <= now and after ~= '' then -- Those of a server that has ended are left to the sweep.
        remove(s, 'ephemeral')
      else
        call('HSET', P .. 'c:' .. T .. id, 'e', s.ephemeral)
        call('ZADD', BY_DELETE_TIME, micros(s.ephemeral), id)
        if s.evictable and not s.running then call('ZADD', EVICTABLE, 0, s.place) end
      end
    end
  end
end
if call('EXISTS', holds) == 0 then call('SREM', P .. 'hs', holder) end
if #removed == 0 then return { 0, removed } end
listTenant()
return { tell(server, '', {}), removed }
