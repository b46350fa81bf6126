'use strict';
// What both views use: elements, calls with the reader's key, sentences of errors.  Text of the model, and all else
// that a server says, goes through textContent only.

const $ = (id) => document.getElementById(id);

// Makes an element: make('p', 'hint', 'text'), make('li', 'job', child, child …).
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// Sets text only if it differs, so that screen readers and selections are left alone.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function show(element, visible) {
  element.hidden = !visible;
}

function showError(element, text) {
  say(element, text || '');
  show(element, Boolean(text));
}

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const short = new Intl.NumberFormat('en', {maximumSignificantDigits: 3, notation: 'compact'});
const rate = (value) => (value >= 100 ? whole : new Intl.NumberFormat('en', {maximumFractionDigits: 1})).format(value);

function seconds(value) {
  if (value < 10) return value.toFixed(1) + ' s';
  if (value < 90) return Math.round(value) + ' s';
  if (value < 5400) return Math.round(value / 60) + ' min';
  return (value / 3600).toFixed(1) + ' h';
}

// The key, in this tab only.
const key = {
  get value() {
    return sessionStorage.getItem('key') || '';
  },
  set value(text) {
    text ? sessionStorage.setItem('key', text) : sessionStorage.removeItem('key');
  },
};

// An error whose message is a sentence for the reader.
class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function sentence(text) {
  const plain = String(text).trim();
  if (!plain) return '';
  const first = plain.charAt(0).toUpperCase() + plain.slice(1);
  return /[.!?…]$/.test(first) ? first : first + '.';
}

async function refusalOf(response) {
  let message = '';
  try {
    message = (await response.json()).error.message;
  } catch {
    message = `the server answered ${response.status}`;
  }
  if (response.status === 401) askForKey(Boolean(key.value));
  const after = Number(response.headers.get('Retry-After'));
  const again = after > 0 ? ` Try again in ${after} s.` : '';
  return new Refusal(response.status, sentence(message) + again);
}

// Calls the server.  Throws a Refusal; an abort goes through.
async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key.value) headers.set('Authorization', 'Bearer ' + key.value);
  let response;
  try {
    response = await fetch(path, {...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refusal(0, 'The server cannot be reached.');
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

const getJson = async (path, options) => (await call(path, options)).json();

function askForKey(was_refused) {
  if ($('key-form').hidden) {
    show($('key-form'), true);
    $('key').focus();
  }
  say($('key-hint'), was_refused ?
      'The server does not know this key.' :
      'It is kept in this tab only, and forgotten when the tab is closed.');
}

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('key').value.trim();
  if (!text || /[^\x21-\x7e]/.test(text)) {
    say($('key-hint'), 'A key is one word of plain letters and digits.');
    return;
  }
  key.value = text;
  $('key').value = '';
  show($('key-form'), false);
  dispatchEvent(new Event('keychange'));
});
