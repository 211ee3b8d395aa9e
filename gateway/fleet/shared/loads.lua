-- What replicas have in flight at workers. One call tells what has changed at the caller and returns the sums over all
-- replicas that have changed since its last call, so it takes as long as there are changes, however large the fleet.
--
-- KEYS  1  sums     hash: worker -> load, over all replicas; a load is five numbers with spaces between them
--       2  told     hash: "replica worker" -> load, of those that have any
--       3  changed  sorted set: worker by the call that changed its sum last
--       4  alive    sorted set: replica by when it called last, in ms of this server's clock
--       5  state    hash: the epoch, the number of the last call, and how large the other keys were after it
-- ARGV  1  replica    2  ms after which a replica that is silent counts as gone    3  epoch    4  last call's number
--       then two per worker: worker, load
-- Returns {epoch, number, replicas alive, {worker, load, ...}}. With number -1 the caller is not known here, or not any
-- more: nothing was taken of what it told, and it must tell all that it has, with this epoch and the number 0. To the
-- number 0 all sums are returned.

local SUMS, TOLD, CHANGED, ALIVE, STATE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SIZES = {SUMS, TOLD, CHANGED}
-- Workers come and go; their places in what has changed are given up by beginning anew.
local MOST_CHANGED = 50000
local KEEP_MS = 60000
local BATCH = 1000

local replica, gone_ms, epoch, last = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function sizes()
  return redis.call('HLEN', SUMS) .. ' ' .. redis.call('HLEN', TOLD) .. ' ' .. redis.call('ZCARD', CHANGED)
end

local function numbers(load)
  local found = {}
  for number in string.gmatch(load or '', '%S+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

local number

-- A load of one replica changes; '' is none.
local function set(name, worker, load)
  local field = name .. ' ' .. worker
  local old, new = numbers(redis.call('HGET', TOLD, field)), numbers(load)
  local sum, any, own = numbers(redis.call('HGET', SUMS, worker)), false, false
  for i = 1, 5 do
    sum[i] = (sum[i] or 0) + (new[i] or 0) - (old[i] or 0)
    any = any or sum[i] ~= 0
    own = own or (new[i] or 0) ~= 0
  end
  if own then redis.call('HSET', TOLD, field, load) else redis.call('HDEL', TOLD, field) end
  if any then
    redis.call('HSET', SUMS, worker, string.format('%.0f %.0f %.0f %.0f %.0f', unpack(sum)))
  else
    redis.call('HDEL', SUMS, worker)
  end
  redis.call('ZADD', CHANGED, number, worker)
end

local function forget(name)
  for _, field in ipairs(redis.call('HKEYS', TOLD)) do
    if string.sub(field, 1, #name + 1) == name .. ' ' then
      set(name, string.sub(field, #name + 2), '')
    end
  end
  redis.call('ZREM', ALIVE, name)
end

-- A server that evicts may have lost one of the keys: the sums would never be right again.
local known = redis.call('HGET', STATE, 'epoch')
if not known or redis.call('HGET', STATE, 'sizes') ~= sizes() or redis.call('ZCARD', CHANGED) > MOST_CHANGED then
  redis.call('UNLINK', SUMS, TOLD, CHANGED, ALIVE, STATE)
  known = clock[1] .. '.' .. clock[2]
  redis.call('HSET', STATE, 'epoch', known)
end
number = redis.call('HINCRBY', STATE, 'number', 1)

for _, name in ipairs(redis.call('ZRANGEBYSCORE', ALIVE, '-inf', now_ms - gone_ms)) do
  forget(name)
end

local is_known = epoch == known and redis.call('ZSCORE', ALIVE, replica)
local found = {}
if is_known then
  for i = 5, #ARGV, 2 do
    set(replica, ARGV[i], ARGV[i + 1])
  end
  if last == 0 then
    found = redis.call('HGETALL', SUMS)
  else
    local workers = redis.call('ZRANGEBYSCORE', CHANGED, '(' .. last, '+inf')
    for first = 1, #workers, BATCH do
      local till = math.min(first + BATCH - 1, #workers)
      local loads = redis.call('HMGET', SUMS, unpack(workers, first, till))
      for i = first, till do
        found[#found + 1] = workers[i]
        found[#found + 1] = loads[i - first + 1] or ''
      end
    end
  end
else
  -- It may have told of something before it was taken for gone, or before it began anew.
  forget(replica)
end
redis.call('ZADD', ALIVE, now_ms, replica)
redis.call('HSET', STATE, 'sizes', sizes())
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, KEEP_MS)
end
return {known, is_known and number or -1, redis.call('ZCARD', ALIVE), found}
