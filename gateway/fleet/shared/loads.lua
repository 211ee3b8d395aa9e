-- What replicas have in flight at workers, as a log. One call adds what has changed at the caller and returns what the
-- others have added since its last call; whoever reads adds up by itself, so nothing here grows with the fleet.
--
-- KEYS  1  log    string: what was told, one text after the other; see ARGV 5
--       2  whole  hash: replica -> all that it had in flight when it last told that, for those that join
--       3  marks  sorted set: replica by where the log ended then
--       4  alive  sorted set: replica by when it counts as gone, in ms of this server's clock
--       5  state  string: the epoch, how much of the log's beginning was cut off, the length of the rest, and when the
--                 keys were last given their time to live, in ms
-- ARGV  1  replica    2  ms after which it counts as gone    3  epoch    4  last call's number; 0: this one joins
--       5  "+replica\n" and a line for each load that has changed, or nothing
--       6  "=replica\n" and a line for each load that it has; needed of one that joins, otherwise now and then, for
--          what is older than every replica's last one is cut off the log
--       7  bytes of log from which on it is cut
-- Returns {epoch, number, replicas alive, {text, ...}}. The number is where the log ends. With -1 the caller is not
-- known here, or not any more: nothing was taken, and it must join. One that joins is given what each has told as a
-- whole, and the log from the oldest of these on: what in it is older is said once more, and then overtaken. "=replica\n"
-- alone says that one is gone.

local LOG, WHOLE, MARKS, ALIVE, STATE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local KEEP_MS = 60000
local KEEP_ANEW_MS = 10000

local replica, gone_ms, epoch, last = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local changes, whole, cut_bytes = ARGV[5], ARGV[6], tonumber(ARGV[7])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local known, cut, length, kept_ms = string.match(redis.call('GET', STATE) or '', '^(%S+) (%d+) (%d+) (%d+)$')
cut, length, kept_ms = tonumber(cut), tonumber(length), tonumber(kept_ms)
local replicas = redis.call('ZCARD', ALIVE)

-- A server that evicts may have lost one of the keys: what is read would be less than there is.
if not known or redis.call('STRLEN', LOG) ~= length or redis.call('HLEN', WHOLE) ~= replicas
    or redis.call('ZCARD', MARKS) ~= replicas then
  redis.call('UNLINK', LOG, WHOLE, MARKS, ALIVE, STATE)
  known, cut, length, kept_ms, replicas = clock[1] .. '.' .. clock[2], 0, 0, 0, 0
end

local function add(text)
  if text ~= '' then length = redis.call('APPEND', LOG, text) end
end

local function first_mark()
  local found = redis.call('ZRANGE', MARKS, 0, 0, 'WITHSCORES')
  return tonumber(found[2]) or cut + length
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', ALIVE, '-inf', now_ms)) do
  redis.call('ZREM', ALIVE, name)
  redis.call('ZREM', MARKS, name)
  redis.call('HDEL', WHOLE, name)
  add('=' .. name .. '\n')
  replicas = replicas - 1
end

-- What costs something is not done every time.
local function keep(is_due)
  if is_due or now_ms - kept_ms >= KEEP_ANEW_MS then
    for _, key in ipairs(KEYS) do
      redis.call('PEXPIRE', key, KEEP_MS)
    end
    kept_ms = now_ms
  end
  redis.call('SET', STATE, string.format('%s %.0f %.0f %.0f', known, cut, length, kept_ms), 'PX', KEEP_MS)
end

local joins = last == 0 and whole ~= ''
local is_new = redis.call('ZADD', ALIVE, now_ms + gone_ms, replica) == 1
if not joins and (is_new or epoch ~= known or last < cut or last > cut + length) then
  if is_new then redis.call('ZREM', ALIVE, replica) end
  keep(false)
  return {known, -1, replicas, {}}
end
if is_new then replicas = replicas + 1 end

local texts, from = {}, last
if joins then
  texts, from = redis.call('HVALS', WHOLE), first_mark()
end
if from < cut + length then
  texts[#texts + 1] = redis.call('GETRANGE', LOG, from - cut, -1)
end
add(joins and whole or changes)
if whole ~= '' then
  redis.call('HSET', WHOLE, replica, whole)
  redis.call('ZADD', MARKS, cut + length, replica)
end
local number = cut + length
if length > cut_bytes then
  local mark = first_mark()
  -- Where somebody has not told for long, the little that could go is not worth the copy.
  if mark - cut >= length / 2 then
    redis.call('SET', LOG, redis.call('GETRANGE', LOG, mark - cut, -1), 'PX', KEEP_MS)
    cut, length = mark, number - mark
  end
end
keep(joins)
return {known, number, replicas, texts}
