-- Pins of conversations and the KV tokens that each worker holds for them. One call does any number of steps, in order
-- and as one transaction; the sums change by the difference that a step makes, so they cannot drift from the pins.
--
-- KEYS  1  pins   hash: conversation (16 hexadecimal digits) -> "kv_tokens turns worker"
--       2  seen   sorted set: conversation by when it was last seen, in ms of this server's clock
--       3  sums   hash: worker -> kv_tokens of all pins there; the field "" -> how many pins there are
--       4  responses  hash: response (16 hexadecimal digits) -> "kv_tokens turns conversation worker", as they were
--                     when it was made; the conversation is "-" where there is none
--       5  made       sorted set: response by when it was made, in ms of this server's clock
-- ARGV  1  idle TTL, ms        2  expired pins to sweep at most       3  channel       4  who calls
--       5  TTL of responses, ms     6  how many responses are remembered
--       7  -1 for the sums of all workers, or how many workers follow whose sums are wanted; then those workers
--       then seven per step: op, conversation, worker, kv_tokens, turns, idle (ms since it was last seen), from;
--       a move alone has a `from`, a made response its conversation there or nothing, and a close and a find have
--       neither worker nor tokens nor turns; for made and find the response stands where the conversation does
-- Returns {pins swept, {worker, kv_tokens, ...}, one answer per step}: an answer is the pin that stands, as
--         {worker, kv_tokens, turns, idle (ms)}, or nil where it stands as it was sent; to a find it is the response,
--         as {worker, kv_tokens, turns, idle (ms), conversation or ''}, or nil.
-- Publishes every move and close: "caller\nworker\nkv_tokens\nturns\nconversation", without a worker for a close.

local PINS, SEEN, SUMS, RESPONSES, MADE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local COUNT = ''
local STEP_ARGS = 7
local FIRST_WORKER = 8
-- That a step forgets of those that have expired, and of those beyond the bound.
local SWEEP_RESPONSES = 20
-- What is sent as seen so long ago was so plus the time on the line: of one worker's states within this, the later wins.
local SLACK_MS = 1000

local ttl_ms, sweep_limit, channel, caller = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local response_ttl_ms, most_responses = tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function add(field, amount)
  if amount ~= 0 and redis.call('HINCRBY', SUMS, field, amount) == 0 then
    redis.call('HDEL', SUMS, field)
  end
end

local function get(conversation)
  local value = redis.call('HGET', PINS, conversation)
  if not value then return nil end
  local kv, turns, worker = string.match(value, '^(%d+) (%d+) (.*)$')
  return {
    worker = worker, kv = tonumber(kv), turns = tonumber(turns),
    seen = tonumber(redis.call('ZSCORE', SEEN, conversation) or 0),
  }
end

local function drop(conversation, pin)
  redis.call('HDEL', PINS, conversation)
  redis.call('ZREM', SEEN, conversation)
  add(pin.worker, -pin.kv)
  add(COUNT, -1)
end

-- The pin; one that has been idle for too long is gone from here on.
local function live(conversation)
  local pin = get(conversation)
  if pin and pin.seen <= now_ms - ttl_ms then
    drop(conversation, pin)
    return nil
  end
  return pin
end

local function put(conversation, old, new)
  if old and old.worker == new.worker then
    add(new.worker, new.kv - old.kv)
  else
    if old then add(old.worker, -old.kv) else add(COUNT, 1) end
    add(new.worker, new.kv)
  end
  redis.call('HSET', PINS, conversation, string.format('%.0f %.0f ', new.kv, new.turns) .. new.worker)
  redis.call('ZADD', SEEN, new.seen, conversation)
end

local function publish(conversation, worker, kv, turns)
  local text = string.format('\n%.0f\n%.0f\n', kv, turns)
  redis.call('PUBLISH', channel, caller .. '\n' .. worker .. text .. conversation)
end

local function answer(pin)
  return {pin.worker, pin.kv, pin.turns, math.max(0, now_ms - pin.seen)}
end

local steps = {}

-- A claim and a move are for a turn that begins now.
function steps.claim(conversation, sent)
  local pin = live(conversation)
  if pin then
    redis.call('ZADD', SEEN, now_ms, conversation)
    return answer(pin)
  end
  sent.seen = now_ms
  put(conversation, nil, sent)
  return false
end

-- A replica's newest state. Of two workers the one seen later stands, and the one that is here where both are as late.
function steps.put(conversation, sent)
  local pin = live(conversation)
  if not pin then
    if sent.seen > now_ms - ttl_ms then put(conversation, nil, sent) end
  elseif pin.worker ~= sent.worker then
    if sent.seen <= pin.seen then return answer(pin) end
    put(conversation, pin, sent)
    publish(conversation, sent.worker, sent.kv, sent.turns)
  elseif sent.seen + SLACK_MS >= pin.seen then
    sent.turns, sent.seen = math.max(sent.turns, pin.turns), math.max(sent.seen, pin.seen)
    put(conversation, pin, sent)
  end
  return false
end

function steps.move(conversation, sent, from)
  local pin = live(conversation)
  if pin and pin.worker ~= from then return answer(pin) end
  sent.seen = now_ms
  put(conversation, pin, sent)
  publish(conversation, sent.worker, sent.kv, sent.turns)
  return false
end

-- Not where a later turn is under way.
function steps.close(conversation, sent)
  local pin = live(conversation)
  if pin and pin.seen > sent.seen + SLACK_MS then return answer(pin) end
  if pin then drop(conversation, pin) end
  publish(conversation, '', 0, 0)
  return false
end

local function forget(responses)
  if #responses > 0 then
    redis.call('HDEL', RESPONSES, unpack(responses))
    redis.call('ZREM', MADE, unpack(responses))
  end
end

function steps.made(response, sent, conversation)
  if redis.call('HLEN', RESPONSES) ~= redis.call('ZCARD', MADE) then
    redis.call('UNLINK', RESPONSES, MADE)
  end
  local told = conversation == '' and '-' or conversation
  redis.call('HSET', RESPONSES, response, string.format('%.0f %.0f %s ', sent.kv, sent.turns, told) .. sent.worker)
  redis.call('ZADD', MADE, sent.seen, response)
  forget(redis.call('ZRANGEBYSCORE', MADE, '-inf', now_ms - response_ttl_ms, 'LIMIT', 0, SWEEP_RESPONSES))
  local over = math.min(redis.call('ZCARD', MADE) - most_responses, SWEEP_RESPONSES)
  if over > 0 then forget(redis.call('ZRANGE', MADE, 0, over - 1)) end
  redis.call('PEXPIRE', RESPONSES, response_ttl_ms)
  redis.call('PEXPIRE', MADE, response_ttl_ms)
  return false
end

function steps.find(response)
  local value = redis.call('HGET', RESPONSES, response)
  local made = value and tonumber(redis.call('ZSCORE', MADE, response) or 0)
  if not value or made <= now_ms - response_ttl_ms then return false end
  local kv, turns, conversation, worker = string.match(value, '^(%d+) (%d+) (%S+) (.*)$')
  if conversation == '-' then conversation = '' end
  return {worker, tonumber(kv), tonumber(turns), math.max(0, now_ms - made), conversation}
end

-- A server that evicts may have lost one of the first three keys: they would never agree again, so all begin anew.
local function begin_anew_where_torn()
  local pins, seen = redis.call('HLEN', PINS), redis.call('ZCARD', SEEN)
  if pins ~= seen or pins ~= tonumber(redis.call('HGET', SUMS, COUNT) or 0) then
    redis.call('UNLINK', PINS, SEEN, SUMS)
  end
end

local function sweep()
  local expired = redis.call('ZRANGEBYSCORE', SEEN, '-inf', now_ms - ttl_ms, 'LIMIT', 0, sweep_limit)
  for _, conversation in ipairs(expired) do
    live(conversation)
  end
  return #expired
end

local function sums_of(first, last)
  if last < first then return {} end
  local tokens = redis.call('HMGET', SUMS, unpack(ARGV, first, last))
  local found = {}
  for i = first, last do
    found[#found + 1] = ARGV[i]
    found[#found + 1] = tokens[i - first + 1] or '0'
  end
  return found
end

begin_anew_where_torn()
local swept = sweep()
local wanted = tonumber(ARGV[7])
local first_step = FIRST_WORKER + math.max(0, wanted)
local answers = {}
for i = first_step, #ARGV, STEP_ARGS do
  local sent = {
    worker = ARGV[i + 2], kv = tonumber(ARGV[i + 3]), turns = tonumber(ARGV[i + 4]),
    seen = now_ms - tonumber(ARGV[i + 5]),
  }
  answers[#answers + 1] = steps[ARGV[i]](ARGV[i + 1], sent, ARGV[i + 6])
end
-- Where the last replica is gone, so is all of this; by then every pin has expired, and their three keys go at once.
for _, key in ipairs({PINS, SEEN, SUMS}) do
  redis.call('PEXPIRE', key, 2 * ttl_ms)
end
local sums = wanted < 0 and redis.call('HGETALL', SUMS) or sums_of(FIRST_WORKER, first_step - 1)
return {swept, sums, answers}
