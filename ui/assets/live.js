// Renews the overview while it is looked at. Without it the page is as it was loaded.
'use strict'
{
  const every = 5000
  const live = document.getElementById('live')
  const control = document.querySelector('.live-control')
  const toggle = document.getElementById('live-toggle')
  const announce = document.getElementById('announce')
  const dead = () => document.getElementById('dead-count').textContent
  let on = true
  let busy = false

  const renew = async () => {
    // What somebody has the focus in, or is reading in a selection, is left alone.
    if (!on || busy || document.hidden || live.contains(document.activeElement) || !getSelection().isCollapsed) return
    busy = true
    try {
      const answer = await fetch(location.origin + location.pathname, { credentials: 'same-origin' })
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('live')
      if (!answer.ok || !fresh) throw new Error(String(answer.status))
      const open = [...live.querySelectorAll('details[open]')].map(d => d.id)
      const before = dead()
      live.replaceChildren(...fresh.childNodes)
      for (const id of open) document.getElementById(id)?.setAttribute('open', '')
      control.classList.remove('lost')
      if (dead() !== before) announce.textContent = 'Dead messages: ' + dead()
    } catch {
      if (!control.classList.contains('lost')) announce.textContent = 'The page cannot be renewed'
      control.classList.add('lost')
    } finally {
      busy = false
    }
  }

  control.hidden = false
  toggle.addEventListener('click', () => {
    on = !on
    toggle.setAttribute('aria-pressed', String(on))
    control.classList.toggle('off', !on)
  })
  setInterval(renew, every)
}
