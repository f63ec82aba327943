// The script of examples/push/index.html, with an EventSource that does what the test says. Standard input is the page.
const assert = require('assert');
const page = require('fs').readFileSync(0, 'utf8');
const script = page.match(/<script>([^]*)<\/script>/)[1];
const elements = {}, streams = [], timers = [];
const element = () => ({ textContent: '', append() {}, prepend() {} });
global.location = { href: 'http://h/', search: '', toString: () => 'http://h/' };
global.document = {
  getElementById: (id) => (elements[id] ??= element()), createElement: element, querySelector: element,
};
global.setTimeout = (call) => timers.push(call);
global.EventSource = class {
  static CLOSED = 2;
  constructor(url) {
    this.query = url.searchParams;
    this.readyState = 0;
    streams.push(this);
  }
};
(0, eval)(script);
assert.equal(streams[0].query.get('last_event_id'), 'earliest');
streams[0].onmessage({ data: 'x', lastEventId: 'urn:a b' });
streams[0].onerror();
assert.equal(timers.length, 0, 'the browser connects again');
streams[0].readyState = 2;
streams[0].onerror();
assert.equal(timers.length, 1, 'the browser has given up');
timers[0]();
assert.equal(streams[1].query.get('last_event_id'), 'urn:a b');
streams[1].onopen();
assert.equal(elements.state.textContent, 'connected');
