// The chat: turns of a conversation, one answer at a time.

const chat = {
  turns: [],      // {role, content}
  abort: null,    // ends the answer that is under way
};

// The number in a field, or undefined.  Throws a Refusal that names the field.
function numberIn(id, is_whole) {
  const field = $(id);
  const text = field.value.trim().replace(',', '.');
  field.removeAttribute('aria-invalid');
  if (!text) return undefined;
  const number = Number(text);
  if (Number.isFinite(number) && (!is_whole || Number.isSafeInteger(number))) return number;
  field.setAttribute('aria-invalid', 'true');
  $('settings').open = true;
  field.focus();
  const name = field.parentElement.firstChild.textContent.trim();
  throw new Refusal(0, `${name}: “${text}” is no ${is_whole ? 'whole ' : ''}number.`);
}

function requestOf(messages) {
  const system = $('system').value.trim();
  return {
    messages: system ? [{role: 'system', content: system}, ...messages] : messages,
    temperature: numberIn('temperature', false),
    top_p: numberIn('top_p', false),
    max_tokens: numberIn('max_tokens', true),
    seed: numberIn('seed', true),
    stream: true,
    stream_options: {include_usage: true},
  };
}

// Calls `take` with the JSON of each server-sent event.  A stop counts at once, also for what has come already.
async function readEvents(response, signal, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Refusal(0, 'The connection ended before the answer did.');
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      signal.throwIfAborted();
      const data = event.split(/\r?\n/).filter((line) => line.startsWith('data:'))
          .map((line) => line.slice(5).trimStart()).join('\n');
      if (data === '[DONE]') return;
      if (data) take(JSON.parse(data));
    }
  }
}

// The element of one turn.
class Turn {
  constructor(role, text) {
    this.text = make('div', 'text', text);
    this.note = make('span', 'note');
    this.copy = make('button', 'quiet', 'Copy');
    this.copy.type = 'button';
    this.copy.addEventListener('click', () => this.copyText());
    const who = role === 'user' ? 'You' : 'Model';
    this.copy.setAttribute('aria-label', `Copy what ${role === 'user' ? 'you' : 'the model'} said`);
    this.thoughts = null;
    this.item = make('li', 'turn ' + role, make('h3', 'hidden-text', who), this.text,
                     make('div', 'foot', this.note, this.copy));
    $('turns').append(this.item);
  }

  async copyText() {
    try {
      await navigator.clipboard.writeText(this.text.textContent);
      say(this.copy, 'Copied');
    } catch {
      getSelection().selectAllChildren(this.text);
      say(this.copy, 'Selected');
    }
    setTimeout(() => say(this.copy, 'Copy'), 1500);
  }

  addThought(text) {
    if (!this.thoughts) {
      this.thoughts = make('div', 'text');
      this.item.insertBefore(make('details', 'thoughts', make('summary', '', 'Reasoning'), this.thoughts), this.text);
    }
    this.thoughts.append(text);
  }
}

const kFinished = {stop: '', length: 'cut off at the limit of tokens', abort: 'ended by the server'};

// What is known of an answer's speed.
function noteOf(seen, usage, ending) {
  const parts = [];
  const took = (seen.last - seen.first) / 1000;
  if (usage) {
    parts.push(`${whole.format(usage.prompt_tokens)} + ${whole.format(usage.completion_tokens)} tokens`);
    if (usage.completion_tokens > 1 && took > 0) parts.push(`${rate((usage.completion_tokens - 1) / took)} tokens/s`);
  }
  if (seen.first) parts.push(`first after ${seconds((seen.first - seen.sent) / 1000)}`);
  if (ending) parts.push(ending);
  return parts.join(' · ');
}

// Follows the end of the page, unless its reader has scrolled up.
function isAtEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 80;
}

async function answer(turn, signal) {
  const seen = {sent: performance.now(), first: 0, last: 0};
  let content = '', usage = null, finish = '', ending = '';
  try {
    const response = await call('v1/chat/completions', {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify(requestOf(chat.turns)),
      signal,
    });
    await readEvents(response, signal, (event) => {
      if (event.error) throw new Refusal(0, sentence(event.error.message));
      if (event.usage) usage = event.usage;
      const choice = event.choices && event.choices[0];
      if (!choice) return;
      if (choice.finish_reason) finish = choice.finish_reason;
      const thought = choice.delta.reasoning_content || choice.delta.reasoning || '';
      const piece = choice.delta.content || '';
      if (!thought && !piece) return;
      seen.last = performance.now();
      if (!seen.first) seen.first = seen.last;
      const follow = isAtEnd();
      if (thought) turn.addThought(thought);
      if (piece) {
        content += piece;
        turn.text.append(piece);
      }
      say(turn.note, `${seconds((seen.last - seen.sent) / 1000)} …`);
      if (follow) scrollTo(0, document.documentElement.scrollHeight);
    });
    ending = kFinished[finish] ?? finish;
    say($('chat-said'), content);
  } catch (error) {
    if (error.name !== 'AbortError') {
      showError($('chat-error'), error instanceof Refusal ? error.message : 'The answer could not be read.');
    }
    ending = error.name === 'AbortError' ? 'stopped' : 'not whole';
    say($('chat-said'), error.name === 'AbortError' ? 'Stopped.' : '');
  }
  say(turn.note, noteOf(seen, usage, ending));
  return content;
}

async function send() {
  const text = $('prompt').value.trim();
  if (!text || chat.abort) return;
  showError($('chat-error'), '');
  try {
    requestOf([]);
  } catch (error) {
    return showError($('chat-error'), error.message);
  }
  show($('welcome'), false);
  $('prompt').value = '';
  fitPrompt();
  chat.turns.push({role: 'user', content: text});
  const asked = new Turn('user', text);
  const turn = new Turn('assistant', '');
  turn.item.setAttribute('aria-busy', 'true');
  turn.item.scrollIntoView({block: 'end'});
  const abort = chat.abort = new AbortController();
  showBusy(true);
  const content = await answer(turn, abort.signal);
  turn.item.removeAttribute('aria-busy');
  if (chat.abort !== abort) return;  // another conversation has begun
  if (content) {
    chat.turns.push({role: 'assistant', content});
  } else if (!$('chat-error').hidden) {  // nothing came: the message goes back into its field
    chat.turns.pop();
    turn.item.remove();
    asked.item.remove();
    if (!$('prompt').value) $('prompt').value = text;
    fitPrompt();
    show($('welcome'), chat.turns.length === 0);
  } else {
    chat.turns.push({role: 'assistant', content: ''});
  }
  chat.abort = null;
  showBusy(false);
  if ($('key-form').hidden) $('prompt').focus();
}

function showBusy(busy) {
  show($('send'), !busy);
  show($('stop'), busy);
  $('turns').setAttribute('aria-busy', String(busy));
}

function stop() {
  if (chat.abort) chat.abort.abort();
}

function newChat() {
  stop();
  chat.abort = null;
  chat.turns = [];
  $('turns').replaceChildren();
  showError($('chat-error'), '');
  say($('chat-said'), '');
  show($('welcome'), true);
  showBusy(false);
  $('prompt').focus();
}

function fitPrompt() {
  const field = $('prompt');
  field.style.height = 'auto';
  field.style.height = Math.min(field.scrollHeight + 2, innerHeight * 0.4) + 'px';
}

$('compose').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
$('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$('prompt').addEventListener('input', fitPrompt);
$('stop').addEventListener('click', stop);
$('new-chat').addEventListener('click', newChat);
addEventListener('keydown', (event) => {
  if (event.key === 'Escape') stop();
});
const is_wide = matchMedia('(min-width: 60rem)');
const fitSettings = () => $('settings').open = is_wide.matches;
is_wide.addEventListener('change', fitSettings);
fitSettings();
